import pytest

from penstock.core.text import redact_secrets, suggest_name


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
