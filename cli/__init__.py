"""The command line. An interrupt while it is still being loaded ends it without a traceback."""

import sys
from types import TracebackType

_shown = sys.excepthook


def _end(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        _shown(kind, error, at)


sys.excepthook = _end
