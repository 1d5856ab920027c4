"""An S3 server (moto's) that can be told to hang, to be full and to lie: `python s3_server.py PORT FOLDER`.

A file in FOLDER tells it: `hang` (it answers once that is gone), `full`, `lie` (it gives other bytes of data).
"""

import sys
import time
from pathlib import Path

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

FULL = b"<Error><Code>XMinioStorageFull</Code><Message>Storage backend has reached its limit</Message></Error>"


def main(port, folder):
    moto = DomainDispatcherApplication(create_backend_app)

    def app(environ, respond):
        while (folder / "hang").exists():
            time.sleep(0.01)
        if (folder / "full").exists() and environ["REQUEST_METHOD"] in ("PUT", "POST"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            respond("507 Insufficient Storage", [("Content-Type", "application/xml")])
            return [FULL]
        answer = moto(environ, respond)
        lies = (folder / "lie").exists() and environ["REQUEST_METHOD"] == "GET" and ".data" in environ["PATH_INFO"]
        return [bytes(byte ^ 1 for byte in b"".join(answer))] if lies else answer

    server = make_server("127.0.0.1", port, app, threaded=True)
    (folder / "up").touch()
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
