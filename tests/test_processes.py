"""What tests read of a file while its process writes it."""

from tests.processes import whole_lines


def test_a_line_that_is_read_while_it_is_written_is_not_there_yet(tmp_path):
    """In one of some hundred reads of a growing file, a line cut in two made a test of the sidecar fail."""
    log = tmp_path / "events.jsonl"
    assert whole_lines(log) == []
    log.write_bytes('{"n": 1}\n{"name": "ä'.encode()[:-1])
    assert whole_lines(log) == ['{"n": 1}']
    log.write_bytes('{"n": 1}\n{"name": "ä"}\n'.encode())
    assert whole_lines(log) == ['{"n": 1}', '{"name": "ä"}']
