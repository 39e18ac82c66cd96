"""The table of served versions covers the whole protocol and never promises what the codecs cannot do."""

from penstock.wire.apis import API_TABLE, ApiKey
from penstock.wire.served import NOT_SERVED, SERVED, advertised_versions, api_name, is_served


def test_every_api_is_served_or_says_why_not() -> None:
    assert set(SERVED) | set(NOT_SERVED) == set(API_TABLE)
    assert not set(SERVED) & set(NOT_SERVED)
    assert all(reason.endswith(".") for reason in NOT_SERVED.values())


def test_served_versions_have_codecs_and_advertised_ones_are_stable() -> None:
    for key, served in SERVED.items():
        api = API_TABLE[key]
        assert api.min_version <= served.min_version <= served.max_version <= api.max_version, api.name
        assert served.last_advertised <= min(served.max_version, api.max_stable_version), api.name


def test_produce_is_advertised_from_0_and_served_from_3() -> None:
    # librdkafka derives its compression codecs from the minimum. (KAFKA-18659)
    assert (ApiKey.PRODUCE, 0, 13) in advertised_versions()
    assert not is_served(ApiKey.PRODUCE, 2)
    assert is_served(ApiKey.PRODUCE, 3)


def test_telemetry_is_hidden() -> None:
    advertised = {key for key, _, _ in advertised_versions()}
    assert not advertised & {ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, ApiKey.PUSH_TELEMETRY}
    assert not is_served(ApiKey.PUSH_TELEMETRY, 0)


def test_names_for_people() -> None:
    assert api_name(ApiKey.OFFSET_COMMIT) == "OffsetCommit"
    assert api_name(999) == "API 999"


def test_unstable_versions_are_known_but_not_stable() -> None:
    api = API_TABLE[ApiKey.INIT_PRODUCER_ID]
    assert (api.max_version, api.max_stable_version) == (6, 5)


def test_api_key_constants_match_the_table() -> None:
    constants = {name: key for name, key in vars(ApiKey).items() if name.isupper()}
    assert constants == {api.module.upper(): api.key for api in API_TABLE.values()}


def test_classes_are_found_by_api() -> None:
    for api in API_TABLE.values():
        assert api.request_class().API_KEY == api.response_class().API_KEY == api.key
        assert api.flexible_from == api.request_class().FLEXIBLE_FROM
