"""One file per API, headed by the versions served and what is not done.

A handler checks, authorises, asks the room that knows, and builds the response. It keeps no state; Produce and Fetch
are objects because they run without a coroutine.
"""
