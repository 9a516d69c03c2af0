"""How far a run is: one line that changes on a terminal, plain lines elsewhere."""

import sys
import time


class Progress:
    """Counts the seconds of work that are planned, and guesses those that are left from how long they really take."""

    def __init__(self) -> None:
        self.planned = self.done = 0.0
        self.started = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def plan(self, seconds: float) -> None:
        """Announces work."""
        self.planned += seconds

    def step(self, what: str, seconds: float) -> None:
        """Says what begins now, and that it should take so long."""
        passed = time.monotonic() - self.started
        pace = passed / self.done if self.done > 5 else 1.0
        left = max(0.0, self.planned - self.done) * max(1.0, pace)
        share = min(99, int(100 * self.done / self.planned)) if self.planned else 0
        line = f"[{share:2d} %, {int(left) // 60}:{int(left) % 60:02d} left] {what}"
        sys.stderr.write(f"\r\033[K{line[:110]}" if self.terminal else f"{line}\n")
        sys.stderr.flush()
        self.done += seconds

    def end(self) -> None:
        """Takes the line away."""
        if self.terminal:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
