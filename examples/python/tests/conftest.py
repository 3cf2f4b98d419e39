"""What all tests share: one thread, unless a test asks for more."""
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The tests run on one thread, because they are small and machines are shared."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)
