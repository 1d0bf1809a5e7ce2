"""LogLines out of whatever bytes there are."""

import codecs
import io

import pytest

from penstock.diagnose.training_log.read import LINE_CHARS_MAX, LogLines


def lines_of(data):
    return list(LogLines(io.BytesIO(data)))


def test_carriage_returns_of_a_progress_bar_end_lines():
    assert lines_of(b"\r 1/8\r\r 2/8\r\n done\n") == [" 1/8", " 2/8", " done"]


def test_colours_and_terminal_titles_are_taken_out():
    assert lines_of(b"\x1b[1;31m[SLOW BATCH #1]\x1b[0m 2s\x1b]0;title\x07!\n") == ["[SLOW BATCH #1] 2s!"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_byte_order_mark_tells_the_encoding(encoding):
    assert lines_of("训练\r\nzwei".encode(encoding)) == ["训练", "zwei"]


def test_big_endian_is_read_too():
    assert lines_of(codecs.BOM_UTF16_BE + "a\nb".encode("utf-16-be")) == ["a", "b"]


def test_bytes_that_are_no_text_are_replaced_not_refused():
    assert lines_of(b"ok \xc3\x28\n") == ["ok �("]


def test_a_line_without_end_is_cut_once_and_the_next_is_whole():
    lines = LogLines(io.BytesIO(b"x" * (3 << 20) + b"\nnext\n"))
    assert [len(line) for line in lines] == [LINE_CHARS_MAX, 4]
    assert lines.truncated == 1


def test_a_character_split_between_two_chunks_stays_whole():
    filler = b"a\n" * ((1 << 19) - 1) + b"b"
    assert len(filler) == (1 << 20) - 1
    assert lines_of(filler + "é\n".encode())[-1] == "bé"


def test_an_empty_file_has_no_lines():
    assert lines_of(b"") == []
