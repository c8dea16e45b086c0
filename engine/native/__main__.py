"""`python -m engine.native`: builds the kernels ahead of the first start, as an installation or an image does."""

from __future__ import annotations

import logging
import sys

from engine.native.compiler import NativeBuildError, library_path


def main() -> int:
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        print(library_path())
    except NativeBuildError as error:
        print(f"torch will compute, slower than the native CPU kernels would: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
