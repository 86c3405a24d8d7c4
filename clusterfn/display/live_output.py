"""What a job prints, as it comes to the terminal or the notebook of the user while a call waits.

On the host `bridge/supervisor/output.py` writes it into files at once, and the agent sends what is appended to them.
Here `follower` gets the bytes, and `job_display` has them printed between the lines that say what the job does.
"""

from __future__ import annotations

import codecs
import sys

from clusterfn.bridge import layout
from clusterfn.display import console

STREAMS = (layout.STDOUT, layout.STDERR)


class OutputWriter:
    """Prints what one job prints: its stdout to stdout, and its stderr to stderr."""

    def __init__(self) -> None:
        # A piece of output may end in the middle of a character.
        self._decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in STREAMS}
        self._is_within_a_line = False

    def write(self, stream: str, data: bytes) -> None:
        """Print more of a stream."""
        text = self._decoders[stream].decode(data)
        self._is_within_a_line = not text.endswith("\n")
        console.write(sys.stdout if stream == layout.STDOUT else sys.stderr, text)

    def end_line(self) -> None:
        """Begin a new line for a text of ours if the job has not ended its own."""
        if self._is_within_a_line:
            console.say("\n")
            self._is_within_a_line = False
