"""The stateful P/D router: links the turns of a conversation, carries decode's handles, measures every turn."""
