"""transformers' common tests on our vision transformer, as its own ViT has them: a part of common_tests.py."""

from __future__ import annotations

import unittest
from typing import Any

from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor  # type: ignore[import-not-found]
from torch import nn
from transformers.models.auto import modeling_auto

from geonorm import hf

modeling_auto.MODEL_MAPPING_NAMES["geonorm_vision"] = "GeoNormVisionModel"
modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES["geonorm_vision"] = "GeoNormForImageClassification"


set_any = hf.GeoNormVisionConfig.__setattr__
# as of text encoders: theirs set a window wherever a configuration has the name, and ours refuses one
hf.GeoNormVisionConfig.__setattr__ = lambda config, name, value: set_any(  # type: ignore[method-assign, assignment]
    config, name, None if name == "sliding_window" else value
)


class VisionTester:
    """A small vision transformer in ViT's layout, and images of its size."""

    batch_size, image_size, patch_size, classes = 5, 12, 4, 10
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4
    is_training = True
    seq_length = (image_size // patch_size) ** 2 + 1

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def get_config(self, **changes: Any) -> Any:
        return hf.GeoNormVisionConfig(
            **{
                "scheme": self.scheme, "image_size": self.image_size, "patch_size": self.patch_size,
                "hidden_size": self.hidden_size, "num_hidden_layers": self.num_hidden_layers,
                "num_attention_heads": self.num_attention_heads, "intermediate_size": 37, "mlp": "gelu",
                "norm": "layer", "bias": True, "positions": "learned", "num_labels": self.classes, **changes,
            }
        )  # fmt: skip

    def images(self, channels: int = 3) -> Any:
        return floats_tensor([self.batch_size, channels, self.image_size, self.image_size])

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        return self.get_config(), {"pixel_values": self.images()}


class VisionTest(ModelTesterMixin):  # type: ignore[misc]
    """What an image has no tokens for, its ViT leaves out too: embeddings of inputs, other vocabularies."""

    scheme = "geonorm"
    all_model_classes = (hf.GeoNormVisionModel, hf.GeoNormForImageClassification)
    test_resize_embeddings = False
    test_inputs_embeds = None

    def setUp(self) -> None:
        self.model_tester = VisionTester(self.scheme)

    def test_config(self) -> None:
        try:
            from tests.test_configuration_common import ConfigTester  # type: ignore[import-not-found]
        except (ModuleNotFoundError, FileNotFoundError):
            self.skipTest("a source distribution leaves out what its tests of configurations import")  # type: ignore[attr-defined]
        kind = hf.GeoNormVisionConfig
        ConfigTester(self, config_class=kind, has_text_modality=False, hidden_size=32).run_common_tests()

    def test_model_get_set_embeddings(self) -> None:
        """An image enters through a linear map, and another one takes its place; nothing leaves by a vocabulary."""
        for kind in self.all_model_classes:
            model = kind(self.model_tester.get_config())
            assert isinstance(model.get_input_embeddings(), nn.Linear)
            model.set_input_embeddings(other := nn.Linear(48, 32))
            assert model.get_input_embeddings() is other and model.get_output_embeddings() is None

    def test_for_image_classification(self) -> None:
        """In three colours with labels, in one without."""
        tester: Any = self.model_tester
        for channels in (3, 1):
            model = hf.GeoNormForImageClassification(tester.get_config(num_channels=channels)).eval()
            labels = ids_tensor([tester.batch_size], tester.classes) if channels == 3 else None
            out = model(tester.images(channels), labels=labels)
            assert out.logits.shape == (tester.batch_size, tester.classes)
            assert (out.loss is None) == (labels is None)


def vision_case(scheme: str) -> type:
    return type(f"TestVision{scheme.capitalize()}", (VisionTest, unittest.TestCase), {"scheme": scheme})
