"""Datasets of the Hugging Face Hub, without network: which column is the text, splits, fingerprints, failures."""

from types import SimpleNamespace

import pytest

from geonorm.errors import DataError
from geonorm.lab.data import open_source, source as sources

DOCUMENTS = [f"Document {n}: grüße, 世界, 🌍!\n" + "line\n" * n for n in range(40)]


def fake_hub(monkeypatch, splits, sha="abc"):
    def load_dataset(name, config, streaming, revision):
        assert (name, streaming, revision) == ("owner/name", True, sha)
        return splits

    api = SimpleNamespace(dataset_info=lambda name, timeout: SimpleNamespace(sha=sha))
    libraries = {
        "datasets": SimpleNamespace(load_dataset=load_dataset),
        "huggingface_hub": SimpleNamespace(HfApi=lambda: api),
    }
    monkeypatch.setattr(sources, "import_extra", lambda module, what, extra: libraries[module])


def test_hub_dataset(monkeypatch):
    rows = [{"text": text, "url": "x"} for text in DOCUMENTS]
    fake_hub(monkeypatch, {"train": rows[:30], "validation": rows[30:]})
    source = open_source("owner/name:config")
    assert list(source.documents("train")) == DOCUMENTS[:30]
    assert list(source.documents("validation")) == DOCUMENTS[30:]
    assert source.files == ()
    assert source.own_split
    fake_hub(monkeypatch, {"train": [{"text": None, "url": "x"}, *rows]}, sha="newer")
    newer = open_source("owner/name:config")
    assert sorted([*newer.documents("train"), *newer.documents("validation")]) == sorted(DOCUMENTS)
    assert not newer.own_split
    assert len({source.fingerprint, newer.fingerprint, open_source("owner/name").fingerprint}) == 3


def test_columns_of_a_hub_dataset_are_known_before_its_rows(monkeypatch):
    class Rows(list):
        def __init__(self, rows, **types):
            super().__init__(rows)
            self.features = {name: SimpleNamespace(dtype=kind) for name, kind in types.items()}

    rows = [{"title": "a", "body": None, "n": 1}]
    fake_hub(monkeypatch, {"train": Rows(rows, title="string", body="large_string", n="int64")})
    with pytest.raises(DataError, match=r"owner/name: several string fields .*\(fields: title, body, n\)"):
        open_source("owner/name")
    rows = [{"body": None, "n": 1}, *({"body": text, "n": 2} for text in DOCUMENTS)]
    rows = Rows(rows, body="large_string", n="int64")
    fake_hub(monkeypatch, {"train": rows, "validation": rows})
    assert list(open_source("owner/name").documents("train")) == DOCUMENTS


def test_hub_failure_is_one_line(monkeypatch):
    fake_hub(monkeypatch, {})
    with pytest.raises(DataError, match=r"no file or corpus 'owner/name', .*\(KeyError.*network") as caught:
        open_source("owner/name")
    assert "\n" not in str(caught.value)


def test_the_first_row_alone_does_not_say_which_column_is_text(monkeypatch):
    """Where the Hub tells nothing of the columns, as of JSON and CSV: the rule of files (test_data_sources.py)."""
    for first, second, message in (
        ({"title": "a"}, {"title": "b", "text": "long"}, "its text is in 'text', that before it in 'title': put"),
        ({"title": "a", "body": None}, {"title": "b", "body": "long"}, "several string fields .*title, body"),
    ):
        fake_hub(monkeypatch, {"train": [first, second], "validation": [first]})
        with pytest.raises(DataError, match=f"owner/name: {message}") as caught:
            list(open_source("owner/name").documents("train"))
        assert "network" not in str(caught.value)
