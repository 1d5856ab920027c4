import socket

import pytest

from launcher.errors import LaunchError
from launcher.wire.interfaces import address_of, interface_of


def test_the_loopback_has_all_of_its_addresses():
    assert address_of("lo") == "127.0.0.1"
    assert interface_of("127.0.0.1") == interface_of("127.0.0.3") == "lo"


def test_every_address_leads_back_to_its_interface():
    found = []
    for _, name in socket.if_nameindex():
        try:
            address = address_of(name)
        except LaunchError:
            continue  # it has none
        assert interface_of(address) == name
        found.append(name)
    assert "lo" in found


def test_an_unknown_interface_is_named_with_those_that_there_are():
    with pytest.raises(LaunchError, match=r"^there is no interface 'ib9' with an address(.|\n)*there is .*lo"):
        address_of("ib9")


def test_an_address_of_another_machine_has_no_interface():
    assert interface_of("192.0.2.7") is None
