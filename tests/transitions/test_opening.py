"""Opening a keyspace, and bearer keys: what is refused, and what a repeat changes."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from world import World

from keyspace.errors import Refusal, UnknownVersion
from keyspace.layout import API_KEY, FORMAT, HIGH_WATER, KEY_OWNER
from keyspace.limits import CLUSTER_FINGERPRINT, KEYS_PER_WORKSPACE_MAX
from keyspace.opening import open_keyspace, record_high_water
from keyspace.records.system import FORMAT_VERSION
from keyspace.records.tenancy import ApiKeyRecord, Role
from keyspace.transitions.keys import authenticate, create_key, list_keys, revoke_key, secret_digest
from keyspace.tx import Tx

KEY_ID = "ab" * 16


async def test_the_first_process_writes_the_format_and_the_next_finds_it(empty: World) -> None:
    """HOUSE 4, "checked on open": one record, whichever of several processes is first."""
    records = await asyncio.gather(*(open_keyspace(empty.keyspace) for _ in range(5)))
    assert len({record.created_at_ms for record in records}) == 1
    assert (records[0].format_version, records[0].fingerprint) == (FORMAT_VERSION, CLUSTER_FINGERPRINT)
    before = await empty.dump()
    await open_keyspace(empty.keyspace)
    assert await empty.dump() == before


async def test_a_newer_format_is_refused(empty: World) -> None:
    """HOUSE 4, "so that old code refuses newer data"."""
    record = await open_keyspace(empty.keyspace)

    async def newer(tx: Tx) -> None:
        tx.put(FORMAT.at(), msgspec.structs.replace(record, format_version=FORMAT_VERSION + 1))

    await empty.run("newer", newer)
    before = await empty.dump()
    with pytest.raises(UnknownVersion):
        await open_keyspace(empty.keyspace)
    assert await empty.dump() == before


async def test_other_settings_are_refused(empty: World) -> None:
    """HOUSE 10, "a process whose own differ refuses to start"."""
    record = await open_keyspace(empty.keyspace)

    async def other(tx: Tx) -> None:
        tx.put(FORMAT.at(), msgspec.structs.replace(record, fingerprint="other"))

    await empty.run("other", other)
    with pytest.raises(Refusal) as refused:
        await open_keyspace(empty.keyspace)
    assert refused.value.code == "settings_differ"


async def test_a_store_that_went_back_in_time_is_refused(empty: World) -> None:
    """ARCHITECTURE 4, "every process refuses to start on a cluster whose read version is below it", naming the remedy."""
    await open_keyspace(empty.keyspace)
    version = await empty.run("record_high_water", record_high_water)
    await open_keyspace(empty.keyspace)

    async def beyond(tx: Tx) -> None:
        tx.put_max(HIGH_WATER.at(), (version + 10**12).to_bytes(8, "big"))

    await empty.run("beyond", beyond)
    with pytest.raises(Refusal) as refused:
        await open_keyspace(empty.keyspace)
    assert refused.value.code == "store_went_back"
    assert "advanceversion" in refused.value.message


async def test_the_mark_only_rises(empty: World) -> None:
    """Would catch a slow process that lowers what a faster one has seen."""

    async def put(value: int) -> None:
        async def body(tx: Tx) -> None:
            tx.put_max(HIGH_WATER.at(), value.to_bytes(8, "big"))

        await empty.run("put", body)

    for value in (5, 3, 7, 256, 255):
        await put(value)
    assert await empty.read(lambda tx: tx.load(HIGH_WATER.at())) == (256).to_bytes(8, "big")


# -- bearer keys


async def create(world: World, key_id: str, secret: str, *, label: str = "", workspace: str = "acme") -> ApiKeyRecord:
    return await world.run(
        "create_key",
        lambda tx: create_key(tx, workspace, key_id=key_id, secret=secret, role=Role.CLIENT, label=label),
    )


async def test_a_key_authenticates_until_it_is_revoked(world: World) -> None:
    """The secret is stored nowhere; a revoked key is kept for people and found by nobody."""
    record = await create(world, KEY_ID, "secret", label="ci")
    owner = await world.read(lambda tx: authenticate(tx, "secret"))
    assert owner is not None and (owner.workspace, owner.key_id, owner.role) == ("acme", KEY_ID, Role.CLIENT)
    assert await world.read(lambda tx: authenticate(tx, "other")) is None
    assert not [value for value in (await world.dump()).values() if b"secret" in value]
    assert await create(world, KEY_ID, "secret", label="ci") == record, "its id is the receipt"
    await world.check()
    revoked = await world.run("revoke_key", lambda tx: revoke_key(tx, "acme", KEY_ID))
    assert revoked.revoked_at_ms == world.clock.now_ms()
    assert await world.read(lambda tx: authenticate(tx, "secret")) is None
    before = await world.dump()
    world.clock.advance(5)
    assert await world.run("revoke_key", lambda tx: revoke_key(tx, "acme", KEY_ID)) == revoked
    assert await world.dump() == before
    assert await world.read(lambda tx: list_keys(tx, "acme")) == [revoked]
    assert await world.read(lambda tx: tx.load(KEY_OWNER.at(secret_digest("secret")))) is None
    await world.check()


async def test_a_workspace_has_a_bounded_number_of_keys(world: World) -> None:
    """ARCHITECTURE 7: the last key fits, the one beyond it is refused and mutates nothing, and a repeat is still answered."""

    async def fill(tx: Tx) -> None:
        for number in range(KEYS_PER_WORKSPACE_MAX - 1):
            key_id = f"{number:032x}"
            record = ApiKeyRecord(key_id=key_id, role=Role.READER, label="", digest=f"d{number}", created_at_ms=1)
            tx.put(API_KEY.at("acme", key_id), record)

    await world.run("fill", fill)
    last = await create(world, KEY_ID, "secret")
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await create(world, "cd" * 16, "another")
    assert (refused.value.code, refused.value.details["limit"]) == ("too_many_keys", KEYS_PER_WORKSPACE_MAX)
    assert await world.dump() == before
    assert await create(world, KEY_ID, "secret") == last


@pytest.mark.parametrize(
    ("key_id", "workspace", "label", "code"),
    [
        (KEY_ID, "nowhere", "", "not_found"),
        (KEY_ID, "acme", "l" * 201, "invalid_text"),
        (KEY_ID, "acme", "\x00", "invalid_text"),
    ],
)
async def test_an_unsound_key_is_refused(key_id: str, workspace: str, label: str, code: str, world: World) -> None:
    before = await world.dump()
    with pytest.raises(Refusal) as refused:
        await create(world, key_id, "s", label=label, workspace=workspace)
    assert refused.value.code == code
    assert await world.dump() == before


@pytest.mark.parametrize("key_id", ["cd" * 16, "", "x", "AB" * 16, "../acme"])
async def test_a_key_that_is_not_there_is_not_found(key_id: str, world: World) -> None:
    """What cannot exist is answered like what does not; another workspace's key does not exist here."""
    await world.begin(workspace="beta")
    await create(world, "cd" * 16, "s", workspace="beta")
    with pytest.raises(Refusal) as refused:
        await world.run("revoke_key", lambda tx: revoke_key(tx, "acme", key_id))
    assert refused.value.code == "not_found"
    assert len(await world.records(API_KEY, workspace="beta")) == 1
