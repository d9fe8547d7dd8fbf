"""A disk with bad sectors: one file, served by FUSE, of which chosen blocks are read with EIO.

Started as `python -m lamina_torture.bad_disk IMAGE MOUNTPOINT BAD`. The image appears as
`MOUNTPOINT/disk`; a loop device on it has a real file system. BAD is a text file with a line
`first end` for each range of bytes that no read delivers; it is read again with every request.

The protocol is the kernel's own (`linux/fuse.h`), as far as one file needs it. It says `ready` when
the file is there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import sys

NAME = b"disk"
_LOOKUP, _GETATTR, _SETATTR, _OPEN, _READ, _WRITE = 1, 3, 4, 14, 15, 16
_RELEASE, _FSYNC, _FLUSH, _INIT, _OPENDIR, _FALLOCATE = 18, 20, 25, 26, 27, 43
_FORGET, _INTERRUPT, _BATCH_FORGET, _DESTROY = 2, 36, 42, 38
_DIRECT = 1
_REQUEST = struct.Struct("<IIQQIIIHH")
_REPLY = struct.Struct("<IiQ")
_MOST = 128 << 10


class BadDisk:
    """Answers the kernel for one image."""

    def __init__(self, image: str, bad: str) -> None:
        self._image = os.open(image, os.O_RDWR)
        self._bad = bad

    def attributes(self, node: int) -> bytes:
        """The attributes of the directory (node 1) or of the file."""
        size = 0 if node == 1 else os.fstat(self._image).st_size
        mode, links = (0o40755, 2) if node == 1 else (0o100644, 1)
        times = struct.pack("<QQQIII", 0, 0, 0, 0, 0, 0)
        head = struct.pack("<QQQ", node, size, size // 512)
        return head + times + struct.pack("<IIIIIII", mode, links, 0, 0, 0, 4096, 0)

    def is_bad(self, first: int, end: int) -> bool:
        """Returns whether a range touches one that no read delivers."""
        with open(self._bad) as file:
            ranges = [tuple(map(int, line.split())) for line in file]
        return any(first < stop and start < end for start, stop in ranges)

    def answer(self, code: int, node: int, body: bytes) -> bytes | int:
        """Returns the reply to a request, or an error number."""
        if code == _INIT:
            major, minor, ahead = struct.unpack_from("<III", body)
            return struct.pack(
                "<IIIIHHIIHHI28x", major, min(minor, 31), ahead, 0, 16, 16, _MOST, 1, 32, 0, 0
            )
        if code == _LOOKUP:
            if body.rstrip(b"\0") != NAME:
                return errno.ENOENT
            return struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + self.attributes(2)
        if code in (_GETATTR, _SETATTR):
            return struct.pack("<QII", 0, 0, 0) + self.attributes(node)
        if code in (_OPEN, _OPENDIR):
            return struct.pack("<QII", 0, _DIRECT, 0)
        if code == _READ:
            _, position, length = struct.unpack_from("<QQI", body)
            if self.is_bad(position, position + length):
                return errno.EIO
            return os.pread(self._image, length, position)
        if code == _WRITE:
            _, position, length = struct.unpack_from("<QQI", body)
            written = os.pwrite(self._image, body[40 : 40 + length], position)
            return struct.pack("<II", written, 0)
        return b"" if code in (_RELEASE, _FSYNC, _FLUSH, _DESTROY) else errno.ENOSYS

    def serve(self, device: int) -> None:
        """Answers until the file system is unmounted."""
        while True:
            try:
                request = os.read(device, _MOST + 4096)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                if error.errno in (errno.EINTR, errno.EAGAIN, errno.ENOENT):
                    continue
                raise
            _, code, unique, node, *_ = _REQUEST.unpack_from(request)
            if code in (_FORGET, _BATCH_FORGET, _INTERRUPT):
                continue
            found = self.answer(code, node, request[_REQUEST.size :])
            failure, data = (-found, b"") if isinstance(found, int) else (0, found)
            with contextlib.suppress(FileNotFoundError):  # it was interrupted
                os.write(device, _REPLY.pack(_REPLY.size + len(data), failure, unique) + data)


def mount(where: str) -> int:
    """Mounts a FUSE file system; returns the descriptor that its requests come by."""
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,max_read={_MOST}".encode()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"bad_disk", where.encode(), b"fuse.bad_disk", 0, options):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), where)
    return device


if __name__ == "__main__":
    disk = BadDisk(sys.argv[1], sys.argv[3])
    opened = mount(sys.argv[2])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    disk.serve(opened)
