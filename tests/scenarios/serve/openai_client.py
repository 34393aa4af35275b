"""The `openai` package against a server, as a program of its own: `python openai_client.py BASE_URL`.

Prints one JSON object of what it saw. It imports nothing of batchlab, so any environment that holds `openai` runs it.
"""

import asyncio
import json
import sys
from typing import Any

import openai

MODEL = "llama-3.1-8b"
HELLO: Any = [{"role": "user", "content": "Hello there"}]
LONG = {"ignore_eos": True}


def plain(client: openai.OpenAI) -> dict[str, Any]:
    chat = client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=7, extra_body=LONG)
    text = client.completions.create(model=MODEL, prompt=["a b", "c"], max_tokens=3, n=2, extra_body=LONG)
    assert chat.usage is not None
    return {
        "models": [model.id for model in client.models.list()],
        "chat": [
            chat.choices[0].finish_reason,
            chat.usage.completion_tokens,
            len(str(chat.choices[0].message.content).split()),
        ],
        "completions": [len(choice.text.split()) for choice in text.choices],
    }


def streamed(client: openai.OpenAI) -> dict[str, Any]:
    options: Any = {"include_usage": True}
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=9, stream=True, stream_options=options, extra_body=LONG
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert chunks[-1].usage is not None
    return {"words": len(text.split()), "usage": chunks[-1].usage.completion_tokens}


def errors(client: openai.OpenAI, base_url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    stranger = openai.OpenAI(base_url=base_url, api_key="wrong", max_retries=0)
    calls: dict[str, Any] = {
        "no_such_model": lambda: client.completions.create(model="gpt-9", prompt="x"),
        "bad": lambda: client.completions.create(model=MODEL, prompt="x", max_tokens=-1),
        "no_key": stranger.models.list,
    }
    for name, call in calls.items():
        try:
            call()
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.status_code]
    return found


async def many(base_url: str) -> dict[str, Any]:
    """Eight streams at once, the odd ones of which are left after three tokens."""
    client = openai.AsyncOpenAI(base_url=base_url, api_key="secret", max_retries=0)

    async def one(place: int) -> int:
        tokens = 100_000 if place % 2 else 20
        stream = await client.completions.create(
            model=MODEL, prompt="x", max_tokens=tokens, stream=True, extra_body=LONG
        )
        seen = 0
        async for chunk in stream:
            seen += len(chunk.choices[0].text.split())
            if place % 2 and seen >= 3:
                await stream.close()
                break
        return seen

    seen = await asyncio.gather(*[one(place) for place in range(8)])
    return {"whole": list(seen[0::2]), "left": [count >= 3 for count in seen[1::2]]}


def main() -> None:
    base_url = sys.argv[1]
    client = openai.OpenAI(base_url=base_url, api_key="secret", max_retries=0)
    found = {**plain(client), "stream": streamed(client), "errors": errors(client, base_url)}
    found["async"] = asyncio.run(many(base_url))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
