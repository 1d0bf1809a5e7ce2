"""Refuse a commit message whose subject is longer than 72 characters or whose second line is not empty.

usage: python scripts/check_commit_subject.py MESSAGE_FILE      (pre-commit runs it as a commit-msg hook)
"""

from __future__ import annotations

import sys
from pathlib import Path

SUBJECT_MAX = 72


def problem_of(message: str) -> str | None:
    """Return what is wrong with a commit message, or None."""
    subject, *body = [line for line in message.splitlines() if not line.startswith("#")] or [""]
    if not subject.strip():
        return "the subject is empty"
    if len(subject) > SUBJECT_MAX:
        return (
            f"the subject has {len(subject)} characters, and at most {SUBJECT_MAX} are allowed; put reasons in the body"
        )
    if body and body[0].strip():
        return "the line after the subject must be empty"
    return None


if __name__ == "__main__":
    problem = problem_of(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.exit(f"commit message: {problem}" if problem else 0)
