"""Price lists: what ships, and what a file of the user's must look like."""

import pytest

from wavetank.errors import BadFileError, BadValueError, UnknownNameError
from wavetank.platforms.prices import Offer, read_offers, shipped_offers


def test_twenty_offers_ship_and_each_names_a_device_that_ships():
    offers = shipped_offers()
    assert len(offers) == 20 == len({offer.name for offer in offers})
    assert {offer.gpus for offer in offers} == {1, 2, 4, 8}


def test_a_file_is_read_with_its_bounds(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(
        "\ufeffinstance, device, gpus, usd_per_hour, available\nbig, H100-SXM, 8, 30.5, 3\nsmall,L4,1,.7,\n"
    )
    assert read_offers(path) == (
        Offer(name="big", device="H100-SXM", gpus=8, usd_per_hour=30.5, available=3),
        Offer(name="small", device="L4", gpus=1, usd_per_hour=0.7),
    )


@pytest.mark.parametrize(
    ("rows", "error", "says"),
    [
        ("", BadFileError, "empty"),
        ("a,H100-SXM,x,1\n", BadFileError, "line 2"),
        ("a,H100-SXM,1,\n", BadFileError, "line 2"),
        ("a,H100-SXM,1,3,50\n", BadFileError, "line 2"),
        ("a,H100-SXM,0,1\n", BadValueError, "line 2"),
        ("a,H100-SXM,1,-1\n", BadValueError, "line 2"),
        ("a,H100-SXM,1,nan\n", BadValueError, "line 2"),
        ("a,H100-SMX,1,1\n", UnknownNameError, "H100-SXM"),
        ("a,H100-SXM,1,1\na,H100-SXM,2,1\n", BadFileError, "line 3"),
    ],
)
def test_a_wrong_row_is_named(tmp_path, rows, error, says):
    path = tmp_path / "prices.csv"
    path.write_text("instance,device,gpus,usd_per_hour\n" + rows)
    with pytest.raises(error) as caught:
        read_offers(path)
    assert says in str(caught.value)


def test_a_file_without_prices_names_the_columns_that_are_missing(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text("instance,gpus\na,1\n")
    with pytest.raises(BadFileError, match="device, usd_per_hour"):
        read_offers(path)
