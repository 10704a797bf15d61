"""A stand-in for `llama-server`: its flags, log lines and API, and words in place of a model."""

from __future__ import annotations

import argparse
import json
import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS = "llamacpp:requests_processing 3\nllamacpp:requests_deferred 1\n"
WORDS = ["the", "quiet", "river", "bends", "past", "old", "mills", "while", "herons", "wait"]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for flag, kind in (("--host", str), ("--port", int), ("--alias", str), ("--model", str)):
        parser.add_argument(flag, type=kind)
    parser.add_argument("--parallel", type=int)
    parser.add_argument("--metrics", action="store_true")
    parser.error = lambda message: sys.exit(f"error: invalid argument: {message}")  # type: ignore
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing: the log is the server's, not http.server's."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.answer(METRICS.encode(), "text/plain")
        else:
            self.answer_json({"data": [{"id": ARGUMENTS.alias}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = int(body.get("max_tokens") or 8)
        words = random.Random(json.dumps(body)).choices(WORDS, k=count)
        prompt = json.dumps(body.get("messages") or body.get("prompt"))
        usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": count}
        chat = self.path.endswith("chat/completions")
        if body.get("stream"):
            return self.stream(words, usage, chat)
        text = " ".join(words)
        choice = {"message": {"content": text}} if chat else {"text": text}
        self.answer_json({"choices": [choice | {"finish_reason": "length"}], "usage": usage})

    def stream(self, words: list[str], usage: dict[str, int], chat: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in words:
            choice = {"delta": {"content": f"{word} "}} if chat else {"text": f"{word} "}
            self.event(json.dumps({"choices": [{"index": 0, **choice}]}))
        self.event(json.dumps({"choices": [], "usage": usage}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def answer_json(self, document: Any) -> None:
        self.answer(json.dumps(document).encode(), "application/json")

    def answer(self, data: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    ARGUMENTS = parsed()
    print("load_tensors: loading model tensors", flush=True)
    print("llama_context: n_ctx         = 8192", flush=True)
    server = ThreadingHTTPServer((ARGUMENTS.host, ARGUMENTS.port), Handler)
    print(f"main: server is listening on http://{ARGUMENTS.host}:{ARGUMENTS.port}", flush=True)
    server.serve_forever()
