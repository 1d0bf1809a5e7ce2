from pathlib import Path

import pytest

import penstock
from penstock.core.text import ascii_glyphs, encodable, redact_secrets, suggest_name


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("train.py", "train.py"),
        ("--data=https://host/a.tar?X-Amz-Signature=hunter2&x=1", "--data=https://host/a.tar?…"),
        ("{'u': 'HTTPS://host/a.tar?sig=hunter2', 'b': 1}", "{'u': 'HTTPS://host/a.tar?…', 'b': 1}"),
        ("https://user:hunter2@host/a.tar", "https://host/a.tar"),
        ("https://user:hunt@er2@host/a.tar", "https://host/a.tar"),
        ("s3a://AKIAX:hun/ter2@bucket/a.tar", "s3a://bucket/a.tar"),
        ("https://host:9000/a@b.tar", "https://host:9000/a@b.tar"),
        ("s3://bucket/a@b.tar", "s3://bucket/a@b.tar"),
        ("s3://bucket/what?.tar", "s3://bucket/what?.tar"),
        ("is it so?", "is it so?"),
        ("--secret-key=hunter2", "--secret-key=…"),
        ("AWS_SESSION_TOKEN=hunter2 python x", "AWS_SESSION_TOKEN=… python x"),
        ("--token=hunter2", "--token=…"),
        ("--max-tokens=512 --pad_token=x --tokenizer=y", "--max-tokens=512 --pad_token=x --tokenizer=y"),
    ],
)
def test_only_queries_and_secrets_are_removed(text, left):
    assert redact_secrets(text) == left


def test_a_misspelt_name_gets_the_closest_one_as_advice():
    assert suggest_name("wrokers", ["workers", "readers"]) == "Perhaps workers is meant"
    assert suggest_name("colour", ["workers", "readers"]) == "There are workers, readers"


# -- encodings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("utf-8", "1 → 2 · 3×4 µs ✓ é 训"),
        ("latin-1", "1 -> 2 · 3×4 µs + é \\u8bad"),
        ("gbk", "1 → 2 · 3×4 us + é 训"),
        ("ascii", "1 -> 2 - 3x4 us + \\xe9 \\u8bad"),
        ("no-such-encoding", "1 -> 2 - 3x4 us + \\xe9 \\u8bad"),
    ],
)
def test_only_characters_that_the_encoding_lacks_are_replaced(encoding, shown):
    assert encodable("1 → 2 · 3×4 µs ✓ é 训", encoding) == shown


def test_what_penstock_prints_has_ascii_glyphs():
    sources = "".join(path.read_text("utf-8") for path in Path(penstock.__file__).parent.rglob("*.py"))
    printed = {char for char in sources if not char.isascii()}
    assert {char for char in printed if "\\u" in ascii_glyphs(char)} <= set("ᵢ训")
