"""The `usocket` of a board, for MicroPython's WebAssembly port, which has none: one connection, made by the test.

Runs on MicroPython. `run_micropython.mjs` reads and writes the connection's descriptor, as text of hexadecimal digits.
"""

from binascii import hexlify, unhexlify


class socket:  # noqa: N801
    def __init__(self):
        import descriptor

        self._descriptor = descriptor
        self._waits = True

    def connect(self, _address):
        pass

    def setblocking(self, waits):
        self._waits = waits

    def write(self, data, size=None):
        whole = data.encode() if isinstance(data, str) else bytes(data if size is None else data[:size])
        self._descriptor.write(hexlify(whole).decode())
        return len(whole)

    def read(self, size):
        found = self._descriptor.read(size, self._waits)
        return None if found == "nothing yet" else unhexlify(found)

    def close(self):
        pass


def getaddrinfo(host, port):
    return [(0, 0, 0, "", (host, port))]
