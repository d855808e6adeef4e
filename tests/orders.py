"""Single steps of `best_order`, as schedules.

In: a program and a schedule. Out: the same executions in another order. Never chooses.
"""

from rematpass.solve.program import Schedule


def tidy_backward(program, schedule):
    """In an order that mostly holds less."""
    return Schedule(schedule.forward, program.core.tidy_backward(schedule.backward))


def let_hurry(program, schedule):
    """With functions that free memory before the peak of the backward."""
    return Schedule(schedule.forward, program.core.let_hurry(schedule.backward))
