"""LoRA adapters over HTTP: chosen by `model`, listed, and allowed by a key."""

from pathlib import Path

from serve_app.api.api_keys import ApiKeyFile
from serve_app.settings.model_names import Adapter
from tests.api.server import Server, error_of

CHAT = "/v1/chat/completions"


def body(model: str, text: str = "sea") -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": text}]}


async def test_an_adapter_goes_to_the_engine_of_its_model_with_its_source() -> None:
    adapters: dict[str, str] = {}
    server = Server(adapters=adapters)
    adapters["pirate"] = "/lora/pirate"  # added while the server runs

    async with server.http:
        reply = await server.http.post(CHAT, json=body("pirate"))
        await server.http.post(CHAT, json=body("tide"))
        await server.http.post("/generate", json={"model": "pirate", "prompt": "sea"})

    assert reply.status_code == 200
    chosen = [request.adapter for request in server.chat.requests]
    assert chosen == [Adapter("pirate", "/lora/pirate"), None, Adapter("pirate", "/lora/pirate")]


async def test_an_unknown_or_removed_adapter_is_404() -> None:
    adapters = {"pirate": "/lora/pirate"}
    server = Server(adapters=adapters)

    async with server.http:
        await server.http.post(CHAT, json=body("pirate"))
        del adapters["pirate"]
        reply = await server.http.post(CHAT, json=body("pirate"))

    assert reply.status_code == 404
    assert error_of(reply)["code"] == "model_not_found"
    assert len(server.chat.requests) == 1


async def test_adapters_are_listed_with_their_parent() -> None:
    server = Server(adapters={"pirate": "/lora/pirate"})

    async with server.http:
        models = (await server.http.get("/v1/models")).json()["data"]
        pirate = (await server.http.get("/v1/models/pirate")).json()

    assert [model["id"] for model in models] == ["tide", "pirate", "org/embed"]
    assert [model.get("parent") for model in models] == [None, "tide", None]
    assert pirate == models[1]
    assert "/lora" not in str(models)


async def test_prompts_of_different_adapters_share_no_prefix() -> None:
    server = Server(adapters={"pirate": "/lora/pirate", "sailor": "/lora/sailor"})

    async with server.http:
        for model in ("tide", "pirate", "sailor", "pirate"):
            await server.http.post(CHAT, json=body(model, "sea " * 400))

    plain, pirate, sailor, again = [request.prefix for request in server.chat.requests]
    assert plain is not None
    assert pirate is not None
    assert sailor is not None
    assert pirate == again
    assert not set(plain.blocks) & set(pirate.blocks)
    assert not set(sailor.blocks) & set(pirate.blocks)


async def test_a_key_of_the_model_or_of_the_adapter_may_use_the_adapter(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(
        "keys:\n"
        "  - {name: all, key: sk-all, models: [tide]}\n"
        "  - {name: one, key: sk-one, models: [pirate]}\n"
        "  - {name: none, key: sk-none, models: [org/embed]}\n"
    )
    server = Server(adapters={"pirate": "/lora/pirate"}, api_keys=ApiKeyFile(str(file)))
    statuses, listed = [], []

    async with server.http:
        for key in ("sk-all", "sk-one", "sk-none"):
            headers = {"Authorization": f"Bearer {key}"}
            statuses.append((await server.http.post(CHAT, json=body("pirate"), headers=headers)).status_code)
            models = (await server.http.get("/v1/models", headers=headers)).json()["data"]
            listed.append([model["id"] for model in models])

    assert statuses == [200, 200, 403]
    assert listed == [["tide", "pirate"], ["pirate"], ["org/embed"]]
