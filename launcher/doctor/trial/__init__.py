"""A job that a batch queue is given so that its nodes look around: whatever queue it is.

submit ─ script on the first node ─ on each node: `node.look_around`
                                       greeting ─► here ─ question ─► its time ─► … ─► report
"""
