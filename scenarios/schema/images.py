"""The `images:` of a class: images in its prompts."""

from typing import Annotated

from annotated_types import Unit, doc
from pydantic import Field

from scenarios.schema.lengths import LengthConfig
from scenarios.schema.sessions import CountConfig
from scenarios.schema.strict import Strict


class ImagesConfig(Strict):
    """Images that stand before the text of a prompt, behind its shared prefix; their tokens come on top of `input`.

    The engine's `max_image_embeddings` says how large they may be. Its encoder finds equal images in its cache again; a
    prefix cache finds them only in a trace with token ids.
    """

    count: Annotated[CountConfig, doc("images of a request"), Unit("images")] = 1
    tokens: Annotated[LengthConfig, doc("tokens of an image"), Unit("tokens")]
    share: Annotated[float, Field(gt=0, le=1), doc("share of the requests that have images")] = 1.0
    different: Annotated[
        Annotated[int, Field(ge=1, le=1_000_000)] | None,
        doc("different images, all equally popular and each of one size; null: every image is its request's own"),
        Unit("images"),
    ] = None
