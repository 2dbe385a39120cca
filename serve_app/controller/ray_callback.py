"""What Ray Serve's controller calls as it starts (`RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`)."""

from serve_app.controller.node_info import ask_seldom
from serve_app.controller.quiet_turns import QuietTurns, leave_out_quiet_turns


def calm() -> None:
    """Have the controller of this process do less while there is nothing to do."""
    ask_seldom()
    leave_out_quiet_turns(QuietTurns())
