"""The figures of a point, for a terminal."""

from __future__ import annotations

from benchmarks.load.summary import PointResult, Spread

HEADER = (
    "load                tokens/s  req/s  TTFT ms p50/p90/p99     gap ms p50/p90/p99   total ms p50/p99   client CPU"
)


def lines(result: PointResult) -> list[str]:
    """One line of figures; more when something went wrong or the server was measured."""
    load = f"{result.concurrency} at a time" if result.concurrency else f"{result.rate_per_s:g} per second"
    cells = [
        f"{load:<18}",
        f"{result.output_tokens_per_s:9.1f}",
        f"{result.requests_per_s:6.2f}",
        f"{_three(result.ttft_ms, 0):>20}",
        f"{_three(result.gap_ms, 1):>22}",
        f"{result.total_ms.p50:10.0f}/{result.total_ms.p99:.0f}",
        f"{result.client_cpu_s / result.elapsed_s if result.elapsed_s else 0:12.0%}",
    ]
    return [
        " ".join(cells),
        *(f"    {line}" for line in _troubles(result)),
        *(f"    {line}" for line in _server(result)),
    ]


def _three(spread: Spread, digits: int) -> str:
    return f"{spread.p50:.{digits}f}/{spread.p90:.{digits}f}/{spread.p99:.{digits}f}"


def _troubles(result: PointResult) -> list[str]:
    found = [f"{count} x {kind}: {result.first_errors[kind]}" for kind, count in result.errors.items()]
    if result.num_short:
        found.append(f"{result.num_short} answers have fewer tokens than asked for: does the server know ignore_eos?")
    if result.is_cut_off:
        found.append(f"cut off: {result.num_unfinished} of {result.num_requests} requests had no answer in time")
    if result.rate_per_s and result.lateness_ms.p99 > 50:
        found.append(f"this client was late: p99 {result.lateness_ms.p99:.0f} ms after a request was due")
    return found


def _server(result: PointResult) -> list[str]:
    if result.server is None:
        return []
    use = result.server
    head = f"server: {use.cpu_s:.1f} CPU seconds, peak {use.memory_kind} {use.peak_mib:.0f} MiB"
    return [
        head,
        *(f"  {process.cpu_s:7.2f} s {process.peak_mib:8.1f} MiB  {process.name}" for process in use.processes),
    ]
