"""The part of the Hub that an upload talks to, over HTTP on this machine: create, validate, preupload, LFS, commit.

What ``huggingface_hub`` sends is kept, checked as the Hub checks it, and put together into the repository that it makes.
Requests to any other address are answered 404 and listed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

TOKEN = "a-token-that-may-write"


class Hub(ThreadingHTTPServer):
    """A Hub with its repositories, from their names to their files."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repos: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.blobs: dict[str, bytes] = {}
        self.commits: list[tuple[str, str]] = []
        self.elsewhere: list[str] = []
        self.fails: str | None = None  # the address whose requests end in an error of the server
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_):
        """Say nothing."""

    def answer(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def refuse(self):
        """Whether the request was answered with an error already."""
        path = self.path.split("?")[0]
        if self.server.fails and path.startswith(self.server.fails):
            self.body()
            self.answer(500, {"error": "the stub was told to fail"})
            return True
        if not path.startswith("/blobs/") and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.body()
            self.answer(401, {"error": "Invalid username or password."})
            return True
        return False

    def do_GET(self):
        self.server.elsewhere.append(self.path)
        self.answer(404, {"error": "not of the upload interface"})

    def do_PUT(self):
        if self.refuse():
            return
        data = self.body()
        self.server.blobs[hashlib.sha256(data).hexdigest()] = data
        self.answer(200, {})

    def do_POST(self):
        if self.refuse():
            return
        path, data = self.path.split("?")[0], self.body()
        if path == "/api/repos/create":
            self.create(json.loads(data))
        elif path == "/api/validate-yaml":
            self.validate(json.loads(data)["content"])
        elif path.endswith("/preupload/main"):
            self.preupload(json.loads(data))
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.batch(json.loads(data))
        elif path.startswith("/api/models/") and path.endswith("/commit/main"):
            repo = path.removeprefix("/api/models/").removesuffix("/commit/main")
            self.commit(repo, [json.loads(line) for line in data.splitlines()])
        else:
            self.server.elsewhere.append(path)
            self.answer(404, {"error": "not of the upload interface"})

    def create(self, asked):
        repo = f"{asked['organization']}/{asked['name']}"
        if repo in self.server.repos:
            self.answer(409, {"error": "You already created this model repo", "url": f"{self.server.url}/{repo}"})
            return
        self.server.repos[repo] = {}
        self.server.private[repo] = asked.get("visibility") == "private" or asked.get("private") is True
        self.answer(200, {"url": f"{self.server.url}/{repo}", "name": repo})

    def validate(self, content):
        errors = []
        try:
            block = yaml.safe_load(content.split("---\n")[1])
            if not isinstance(block.get("license"), str):
                errors.append({"message": '"license" must be a string'})
        except (IndexError, AttributeError, yaml.YAMLError) as error:
            errors.append({"message": f"no YAML: {error}"})
        self.answer(400 if errors else 200, {"errors": errors, "warnings": []})

    def preupload(self, asked):
        files = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for file in asked["files"]
        ]
        self.answer(200, {"files": files})

    def batch(self, asked):
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.server.url}/blobs/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        self.answer(200, {"transfer": "basic", "objects": objects})

    def commit(self, repo, lines):
        if repo not in self.server.repos:
            self.answer(404, {"error": "Repository not found"})
            return
        (header, *operations), files = lines, {}
        for operation in operations:
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile" and value["oid"] in self.server.blobs:
                files[value["path"]] = self.server.blobs[value["oid"]]
            else:
                self.answer(400, {"error": f"no such operation or object: {operation['key']}"})
                return
        self.server.repos[repo] |= files
        self.server.commits.append((repo, header["value"]["summary"]))
        self.answer(200, {"commitUrl": f"{self.server.url}/{repo}/commit/1", "commitOid": "1" * 40, "success": True})
