from tests.support.demo_server import demo

__all__ = ["demo"]
