"""vLLM's engine without a model: an executor that spells a text, for `--distributed-executor-backend`.

Runs inside of vLLM's own environment. Its scheduler, its engine process and its API server are vLLM's; only the forward
pass is left out: every request gets one token per step at once, and there is no KV cache to keep. The ids of the text
are in MUSTER_INSTANT_TOKENS.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future
from typing import Any

from vllm.v1.executor.abstract import Executor  # type: ignore[import-not-found]
from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]

from benchmarks.gateway.vllm_instant_name import TOKENS_VARIABLE

_ANSWERS: dict[str, Any] = {
    "get_kv_cache_spec": {},  # no layer keeps anything
    "get_supported_kv_cache_layouts": ["LBNHC"],
    "get_supported_tasks": ("generate",),
    "supports_draft_weight_updates": False,
}


class InstantExecutor(Executor):  # type: ignore[misc]
    """What the engine process of vLLM asks for its tokens."""

    def _init_executor(self) -> None:
        self._text: list[int] = json.loads(os.environ[TOKENS_VARIABLE])
        self._todo: dict[str, int] = {}  # prompt tokens not computed yet
        self._told: dict[str, int] = {}  # tokens so far

    def collective_rpc(
        self,
        method: Any,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        return [_ANSWERS.get(method)] if isinstance(method, str) else [None]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        pass

    def compile_or_warm_up_model(self) -> None:
        pass

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        output = self._step(scheduler_output)
        if not non_block:
            return output
        done: Future[Any] = Future()
        done.set_result(output)
        return done

    def check_health(self) -> None:
        pass

    def shutdown(self) -> None:
        pass

    def _step(self, scheduled: Any) -> ModelRunnerOutput:
        for request_id in scheduled.finished_req_ids:
            self._todo.pop(request_id, None)
            self._told.pop(request_id, None)
        for new in scheduled.scheduled_new_reqs:
            self._todo[new.req_id] = len(new.prompt_token_ids) - new.num_computed_tokens
            self._told[new.req_id] = 0
        request_ids = list(scheduled.num_scheduled_tokens)
        sampled: list[list[int]] = []
        for request_id, num_tokens in scheduled.num_scheduled_tokens.items():
            self._todo[request_id] -= num_tokens
            if self._todo[request_id] > 0:
                sampled.append([])
                continue
            told = self._told[request_id]
            self._told[request_id] = told + 1
            sampled.append([self._text[told % len(self._text)]])
        return ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
            sampled_token_ids=sampled,
        )
