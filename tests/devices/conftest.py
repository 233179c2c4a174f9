"""The mock device, and runs on it."""

import pytest

from starling import hardware


@pytest.fixture
def mock_device():
    """The device `mock:0`, which a configuration may name while the test runs."""
    from support.mock_device import NAME, MockDevice

    with pytest.MonkeyPatch.context() as patch, MockDevice().in_use() as device:
        patch.setattr(hardware, "DEVICES", (*hardware.DEVICES, NAME))
        yield device
