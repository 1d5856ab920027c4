"""Network interfaces and their addresses, as the kernel lists them."""

import fcntl
import ipaddress
import socket
import struct

from launcher.errors import LaunchError

_SIOCGIFADDR = 0x8915
_IF_INET6 = "/proc/net/if_inet6"
_LOCAL_SCOPE = "20"  # of link-local addresses (fe80::), no use without naming the interface at every connect


def address_of(interface: str) -> str:
    """Return the address of the interface, IPv4 if it has one, else IPv6; raise LaunchError if it has none."""
    found = _addresses().get(interface)
    if found is None:
        known = ", ".join(sorted(name for _, name in socket.if_nameindex()))
        raise LaunchError(
            f"there is no interface {interface!r} with an address on {socket.gethostname()}", f"hint: there is {known}"
        )
    return found[0]


def interface_of(address: str) -> str | None:
    """Return the interface that has the address, or None if none has; all of 127.0.0.0/8 belongs to the loopback."""
    wanted = ipaddress.ip_address(address)
    if wanted.version == 4 and wanted.is_loopback:
        return "lo"
    return next((name for name, addresses in _addresses().items() if str(wanted) in addresses), None)


def _addresses() -> dict[str, list[str]]:
    """Return the addresses of each interface that has any, IPv4 first."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # it has none
            found[name] = [socket.inet_ntoa(answer[20:24])]
    for address, name in _inet6():
        found.setdefault(name, []).append(address)
    return found


def _inet6() -> list[tuple[str, str]]:
    """Return (address, interface) for each IPv6 address; link-local ones are left out."""
    try:
        with open(_IF_INET6) as file:
            rows = [line.split() for line in file]
    except FileNotFoundError:
        return []  # a kernel without IPv6
    return [
        (str(ipaddress.ip_address(int(row[0], 16).to_bytes(16, "big"))), row[5])
        for row in rows
        if row[3] != _LOCAL_SCOPE
    ]
