"""`muster certs`: an authority of one's own and certificates for the nodes of a deployment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from services.cli import flag_table
from services.cli.flag import FlagValueError, read_flags


def run(namespace: argparse.Namespace, environment: Mapping[str, str]) -> int:
    """Returns 1 when a file cannot be written or the authority in the directory cannot be used."""
    values = read_flags(flag_table.CERTS, namespace, environment)
    directory: Path = values["directory"]
    from services.development_authority import Authority, AuthorityError, InvalidNameError

    try:
        authority = Authority.in_directory(directory, days=values["days"])
        made = [
            authority.issue(node, also=values["also"], days=values["days"]) for node in namespace.nodes or ["localhost"]
        ]
    except InvalidNameError as error:
        raise FlagValueError(str(error)) from None
    except (AuthorityError, OSError) as error:
        print(f"muster certs: {error}", file=sys.stderr)
        return 1
    print(
        f"authority: {authority.certificate_path} (its key, {authority.key_path.name}, signs more: keep it to yourself)"
    )
    for files in made:
        print(
            f"{files.node}: --tls-cert {files.certificate} --tls-key {files.key} --tls-ca {authority.certificate_path}"
        )
    return 0
