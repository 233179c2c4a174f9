"""The addresses on which processes listen, as reported by the kernel."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path

LISTEN = "0A"


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = children.read_text().split()
        except OSError:
            continue  # the thread has ended
        for child in found:
            yield from tree(int(child))


def listening_addresses(pids: list[int]) -> set[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Addresses and ports at which processes accept TCP connections."""
    sockets = {inode for pid in pids for inode in _sockets(pid)}
    found = set()
    for family in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in sockets:
                address, port = fields[1].split(":")
                found.add((_address(address), int(port, 16)))
    return found


def exposed_addresses(pids: list[int]) -> list[str]:
    """Listening addresses that other machines can reach."""
    return sorted(f"{address}:{port}" for address, port in listening_addresses(pids) if not address.is_loopback)


def socket_files(pids: list[int]) -> list[Path]:
    """Files of the processes' Unix sockets."""
    sockets = {inode for pid in pids for inode in _sockets(pid)}
    lines = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return sorted({Path(line[7]) for line in lines if len(line) == 8 and line[6] in sockets and line[7][0] == "/"})


def _sockets(pid: int) -> Iterator[str]:
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in names:
        try:
            link = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if link.startswith("socket:["):
            yield link[8:-1]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address from /proc: 32-bit words, each in the machine's byte order (little-endian)."""
    words = bytes.fromhex(text)
    data = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
    if len(data) == 4:
        return ipaddress.IPv4Address(data)
    full = ipaddress.IPv6Address(data)
    return full.ipv4_mapped or full
