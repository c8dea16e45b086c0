"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from gateway.openai.bodies import ModelList
from gateway.openai.models import model_card
from gateway.routes.serving import Serving, json_response


class Models:
    """Cards of what is served, one per name."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._created = int(time.time())

    async def index(self, request: Request) -> Response:
        self._serving.model(None)  # while loading there is no honest list
        cards = [
            model_card(name, model, self._created)
            for model in self._serving.cluster.models()
            for name in model.served_model_names
        ]
        body: ModelList = {"object": "list", "data": cards}
        if cards:  # Anthropic's clients read pages
            body |= {"has_more": False, "first_id": cards[0]["id"], "last_id": cards[-1]["id"]}
        return json_response(body)

    async def show(self, request: Request) -> Response:
        model = self._serving.model(request.path_params["model_id"])
        return json_response(model_card(model.name, model.info, self._created))
