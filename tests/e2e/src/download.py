# download.py URL: downloads slowly until standard input ends, then the rest at once. Prints the digest of all bytes.
import hashlib
import sys
import threading
import urllib.request

CHUNK = 64 << 10
PAUSE = 0.1

hurry = threading.Event()


def wait_for_end():
    sys.stdin.read()
    hurry.set()


threading.Thread(target=wait_for_end, daemon=True).start()
digest = hashlib.sha256()
with urllib.request.urlopen(sys.argv[1], timeout=60) as page:
    length = int(page.headers["Content-Length"])
    while chunk := page.read(CHUNK):
        digest.update(chunk)
        length -= len(chunk)
        hurry.wait(PAUSE)
assert length == 0, f"{length} bytes are missing"
print(digest.hexdigest())
