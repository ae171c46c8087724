"""Claims of tasks: a late one is void."""

from dataflow.transport.claims import Claims


def test_a_task_is_claimed_and_freed():
    claims = Claims()
    for number in (0, 5, 10**12):
        claims.free(number)
        assert claims.holder(number) is None
        claims.claim(number, 0)
        assert claims.holder(number) == 0
        claims.free(number)
        assert claims.holder(number) is None
    claims.close()


def test_a_claim_that_comes_late_claims_no_other_task():
    claims = Claims()
    claims.free(4097)
    claims.claim(1, 3)  # of a task that was discarded long ago
    assert claims.holder(4097) is None
    claims.claim(4097, 2)
    assert claims.holder(4097) == 2
    claims.close()
    claims.close()
