"""Errors in OpenAI's shape, with vLLM's types: {"error": {"message", "type", "param", "code"}}."""

import json

from starlette.responses import Response

_TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    413: "BadRequestError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class RefusedError(Exception):
    """A request that gets no answer, with the HTTP status that says why; `param` is the key that is wrong."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    @property
    def body(self) -> bytes:
        """The error as JSON."""
        kind = _TYPES.get(self.status, "APIError")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()

    def response(self) -> Response:
        """The error as an HTTP response. A client may try again after an overload."""
        headers = {"Retry-After": "1"} if self.status in (429, 503) else None
        return Response(self.body, self.status, headers, "application/json")
