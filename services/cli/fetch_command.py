"""`muster fetch`: gets the default model and prints where it is."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

from services.cli import flag_table
from services.cli.flag import read_flags
from services.models.checkpoint import ModelNotFoundError, resolve_model


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    values = read_flags((flag_table.MODEL_CACHE,), namespace, environment)
    try:
        print(resolve_model(None, values["model_cache"]).path)
    except ModelNotFoundError as error:
        print(f"muster fetch: {error}", file=sys.stderr)
        return 1
    return 0
