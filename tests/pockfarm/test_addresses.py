"""Which farm is meant, when its address or key is not written as it should be; and what is there that is no farm."""

from __future__ import annotations

import httpx
import pytest

from pockfarm.client.answers import checked, silent
from pockfarm.client.credentials import address_and_key
from pockfarm.errors import NotFound, Refused, UsageError
from pockfarm.suggestions import nearest


@pytest.mark.parametrize("url", ["http://farm/", " https://farm:8443/behind/ ", "http://[::1]:8000"])
def test_addresses_lose_what_is_at_their_ends(url: str) -> None:
    assert address_and_key(url, " pf_1\n") == (url.strip().rstrip("/"), "pf_1")


@pytest.mark.parametrize(
    ("url", "next_step"),
    [
        ("farm.example", "write it as http://farm.example"),
        ("ftp://farm", "write it as http://farm,"),
        ("http://", "it needs a host"),
        ("http://farm:port", "a port of 1 to 65,535"),
        ("http://farm:0", "a port of 1 to 65,535"),
        ("http://farm:99999", "a port of 1 to 65,535"),
        ("http://[::1", "it needs a host"),
        ("https://farm/behind/dashboard/runs", "write https://farm/behind"),
        ("https://farm/?token=1", "write https://farm"),
    ],
)
def test_what_is_no_address_is_refused(url: str, next_step: str) -> None:
    with pytest.raises(UsageError) as caught:
        address_and_key(url, "pf_1")
    assert url in str(caught.value)
    assert next_step in str(caught.value)


@pytest.mark.parametrize("key", ["Bearer pf_secret", '"pf_secret"', "pf_sec ret", "pf_sécret", "pf_sec\x00ret"])
def test_keys_that_are_none_are_refused_and_not_shown(key: str) -> None:
    with pytest.raises(UsageError, match="the API key") as caught:
        address_and_key("http://farm", key)
    assert "ret" not in str(caught.value)


@pytest.mark.parametrize(("status", "kind"), [(404, NotFound), (501, Refused)])
def test_another_server_is_told_as_what_it_is(status: int, kind: type[Refused]) -> None:
    answer = httpx.Response(status, text="<html>", request=httpx.Request("GET", "http://other/devices"))
    with pytest.raises(kind) as caught:
        checked(answer)
    assert caught.value.code == "farm.other"
    assert f"GET http://other/devices: {status}" in str(caught.value)
    assert "is this a farm's address?" in caught.value.hint


def test_no_tls_is_told_as_that() -> None:
    problem = Exception("[SSL: WRONG_VERSION_NUMBER] wrong version number")
    assert silent("https://farm:1", problem).endswith(" no TLS: is it http://farm:1?")
    assert "pockfarm doctor" in silent("http://farm:1", Exception("refused"))


def test_dashes_make_no_two_options_alike() -> None:
    assert nearest("--lr", ("--color", "--profile")) == ""
    assert nearest("--otu", ("--out", "--plan")) == "--out"
