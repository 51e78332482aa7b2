"""The parts of the fast path that are written in C, if the package was built with a compiler.

They are optional: without them the fast path does the same in Python, at about twice the cost per message.
"""

CALLBACK = 0
"""_intake.c: the address of the message callback."""
INTAKE: "type[_intake.Intake] | None" = None
"""_intake.c: where the callback puts messages."""
READER: "type[_reader.Reader] | None" = None
"""_reader.c: reads native messages."""
SETTLER: "type[_settler.Settler] | None" = None
"""_settler.c: settles deliveries."""
WRITER: "type[_writer.Writer] | None" = None
"""_writer.c: writes native messages."""

# Either all of them exist, or none.
try:
    from lbg_runtime.transport.solace.fast import _intake, _reader, _settler, _writer
except ImportError:
    pass
else:
    CALLBACK, INTAKE = _intake.CALLBACK, _intake.Intake
    READER, SETTLER, WRITER = _reader.Reader, _settler.Settler, _writer.Writer
