"""How a node of the lab starts its Ray."""

from __future__ import annotations

from spotray.lab.raystart import node_environment


def test_rays_own_health_check_is_left_alone_where_that_is_asked_for() -> None:
    def settings(quick: bool) -> list[str]:
        environment = node_environment({"HOME": "/root"}, quick_health_check=quick)
        return [name for name in environment if name.startswith("RAY_health_check")]

    assert len(settings(True)) == 4
    assert settings(False) == []


def test_a_head_without_cpus_starts_several_processes_at_a_time() -> None:
    def setting(is_head: bool) -> str | None:
        environment = node_environment({}, quick_health_check=True, is_head=is_head)
        return environment.get("RAY_worker_maximum_startup_concurrency")

    assert setting(is_head=True) == "4"
    assert setting(is_head=False) is None


def test_settings_of_another_ray_stay_outside() -> None:
    inherited = {"RAY_ADDRESS": "elsewhere:1", "SPOTRAY_JOURNAL": "/j", "HOME": "/root"}
    environment = node_environment(inherited, quick_health_check=False)
    assert "RAY_ADDRESS" not in environment
    assert "SPOTRAY_JOURNAL" not in environment
    assert environment["HOME"] == "/root"
