"""The SDK's bounds agree with the keyspace's, which it cannot import: whatever the SDK lets through, the service takes."""

from __future__ import annotations

from ryusen.clients.calls import KEY_CHARS_MAX
from ryusen.protocol import limits as sdk
from ryusen.worker.shell import CAPACITY_MAX
from ryusen.worker.work import HELD_EXTRA_MAX, RENEW_PAGE

from keyspace import limits as keyspace
from services.dispatcher import options as dispatcher


def test_names_and_policies_agree() -> None:
    assert sdk.NAME_CHARS_MAX == keyspace.NAME_CHARS_MAX == keyspace.STEP_NAME_CHARS_MAX
    assert sdk.FUNCTIONS_MAX == keyspace.FUNCTIONS_MAX
    assert sdk.ATTEMPTS_MAX == keyspace.ATTEMPTS_MAX
    assert sdk.RETRY_DELAY_MS_MAX == keyspace.RETRY_DELAY_MS_MAX
    assert sdk.BACKOFF_COEFFICIENT_MAX == keyspace.RETRY_COEFFICIENT_MAX
    assert sdk.ATTEMPT_TIMEOUT_MS_MAX == keyspace.ATTEMPT_TIMEOUT_MS_MAX
    assert sdk.LOCATION_CHARS_MAX == keyspace.LOCATION_CHARS_MAX
    assert sdk.TIMER_MS_MAX == keyspace.TIMER_MS_MAX
    assert sdk.INVOKE_TIMEOUT_MS_MAX == keyspace.INVOKE_TIMEOUT_MS_MAX
    assert sdk.TIMESTAMP_MS_MAX == keyspace.TIMESTAMP_MS_MAX


def test_values_and_failures_agree() -> None:
    """A failure over the service's limits would settle as an invalid result and lose what it said."""
    assert sdk.VALUE_BYTES_DEFAULT == keyspace.PAYLOAD_BYTES_DEFAULT
    assert sdk.VALUE_BYTES_MAX == keyspace.PAYLOAD_BYTES_MAX
    assert sdk.MESSAGE_BYTES_MAX == keyspace.FAILURE_MESSAGE_BYTES_MAX
    assert sdk.DETAILS_BYTES_MAX == keyspace.FAILURE_DETAILS_BYTES_MAX
    assert KEY_CHARS_MAX == keyspace.IDEMPOTENCY_KEY_BYTES_MAX


def test_whoever_may_publish_an_application_may_serve_it() -> None:
    assert dispatcher.FUNCTIONS_MAX >= sdk.FUNCTIONS_MAX
    assert dispatcher.CAPACITY_MAX >= CAPACITY_MAX


def test_a_hello_can_always_list_what_a_worker_holds() -> None:
    assert dispatcher.HELD_MAX >= 2 * CAPACITY_MAX + HELD_EXTRA_MAX, "callbacks, compensators, passes and frames"
    assert RENEW_PAGE == keyspace.RENEW_ITEMS_MAX
