"""Our models with heads that classify: a text, every token of it, where an answer stands in it."""

from __future__ import annotations

from torch import nn
from transformers.modeling_layers import (
    GenericForQuestionAnswering,
    GenericForSequenceClassification,
    GenericForTokenClassification,
)

from .config import GeoNormConfig
from .modeling import GeoNormModel, GeoNormPreTrainedModel


class Classifier(GeoNormPreTrainedModel):
    """transformers' heads for labels take the mean over a batch whatever the number of items that its trainer names, so
    that it has to divide by the steps that it accumulates over."""

    accepts_loss_kwargs = False


class GeoNormForSequenceClassification(GenericForSequenceClassification, Classifier):
    """A linear classifier on the last token that is not padding."""

    def __init__(self, config: GeoNormConfig) -> None:
        GeoNormPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.model = GeoNormModel(config)
        self.score = nn.Linear(config.hidden_size, self.num_labels, bias=False)
        self.post_init()


class GeoNormForTokenClassification(GenericForTokenClassification, Classifier):
    """A linear classifier, with a bias, on every token. Of a model that sees one side (`is_causal`), a label is told by
    the tokens up to its own."""

    def __init__(self, config: GeoNormConfig) -> None:
        GeoNormPreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.model = GeoNormModel(config)
        self.dropout = nn.Identity()
        self.score = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()


class GeoNormForQuestionAnswering(GenericForQuestionAnswering, GeoNormPreTrainedModel):
    """Where an answer begins and ends in a text: two logits for every token."""

    def __init__(self, config: GeoNormConfig) -> None:
        GeoNormPreTrainedModel.__init__(self, config)
        self.model = GeoNormModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()
