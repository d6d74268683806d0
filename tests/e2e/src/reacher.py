# reacher.py PATIENCE TARGET...: reaches each target twice a second, and prints a line for each attempt: when it started,
# when it ended, the target, and `ok` or why it failed. A target is HOST:PORT, for a TLS handshake, or the URL of a page.
# Names are resolved once. An attempt takes PATIENCE seconds at most.
import functools
import socket
import ssl
import sys
import threading
import time
import urllib.request

PERIOD = 0.5
PATIENCE = float(sys.argv[1])
CONTEXT = ssl.create_default_context()
CONTEXT.check_hostname = False
CONTEXT.verify_mode = ssl.CERT_NONE
LOCK = threading.Lock()


def handshake(address):
    with socket.create_connection(address, timeout=PATIENCE) as plain:
        CONTEXT.wrap_socket(plain).close()


def page(url):
    urllib.request.urlopen(url, timeout=PATIENCE).close()


def attempt(call):
    try:
        call()
        return "ok"
    except OSError as error:
        return str(error) or type(error).__name__


def reach(target, call):
    while True:
        started = time.time()
        result = attempt(call)
        ended = time.time()
        with LOCK:
            print(f"{started:.3f} {ended:.3f} {target} {result}", flush=True)
        time.sleep(max(0, started + PERIOD - time.time()))


for target in sys.argv[2:]:
    if target.startswith("http:"):
        call = functools.partial(page, target)
    else:
        host, port = target.rsplit(":", 1)
        call = functools.partial(handshake, (socket.gethostbyname(host), int(port)))
    threading.Thread(target=reach, args=(target, call)).start()
