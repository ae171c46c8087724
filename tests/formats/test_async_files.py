"""Asynchronous file systems: one attempt for each request, and as many connections as requests."""

import asyncio

import pytest

from dataflow.formats.async_files import AsyncFileSystems

fsspec = pytest.importorskip("fsspec")


class AnyFileSystem:
    """An asynchronous file system without a client."""

    async_impl = True

    def __init__(self, **options):
        self.options = options
        self.retries = 5

    @staticmethod
    def _get_kwargs_from_urls(url):
        return {}

    @staticmethod
    def _strip_protocol(url):
        return url.partition("://")[2]


class S3FileSystem(AnyFileSystem):
    pass


class GCSFileSystem(AnyFileSystem):
    def _request(self):
        return "once"

    def repeated(self):
        raise AssertionError("it is repeated")

    repeated.__wrapped__ = _request
    _request = repeated


class AzureBlobFileSystem(AnyFileSystem):
    def __init__(self, **options):
        super().__init__(**options)
        self._timeout_kwargs = {"connection_timeout": 5}


@pytest.fixture
def made(monkeypatch):
    """Makes the file system of a class, with 7 connections."""

    def make(kind, **options):
        monkeypatch.setattr(fsspec, "get_filesystem_class", lambda protocol: kind)

        async def find():
            return AsyncFileSystems(7, options).find("any://bucket/file")

        system, path = asyncio.run(find())
        assert path == "bucket/file" and system.options["asynchronous"]
        return system

    return make


def test_s3_has_one_attempt_and_so_many_connections(made):
    system = made(S3FileSystem, config_kwargs={"region": "x"})
    assert system.options["config_kwargs"] == {
        "max_pool_connections": 7,
        "region": "x",
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
    assert system.options["max_concurrency"] == system.retries == 1


def test_google_repeats_no_request(made):
    pytest.importorskip("aiohttp")
    system = made(GCSFileSystem, session_kwargs={"connector": "of the user"})
    assert system.options["session_kwargs"] == {"connector": "of the user"}
    assert system._request() == "once"
    del GCSFileSystem._request.__wrapped__  # another version, which does not decorate it
    with pytest.raises(AssertionError, match="it is repeated"):
        made(GCSFileSystem, session_kwargs={"connector": "of the user"})._request()


def test_azure_repeats_no_request(made):
    assert made(AzureBlobFileSystem)._timeout_kwargs == {"connection_timeout": 5, "retry_total": 0}


def test_another_version_of_the_http_file_system_checks_responses_in_its_own_way(made):
    class HTTPFileSystem(AnyFileSystem):
        pass

    assert vars(made(HTTPFileSystem, get_client=print)).keys() == vars(AnyFileSystem()).keys()


def test_other_file_systems_get_what_they_are_given(made):
    assert made(AnyFileSystem, token="x").options["token"] == "x"


def test_a_chain_of_file_systems_is_none_of_them():
    assert AsyncFileSystems(7, {}).find("simplecache::any://bucket/file") is None
