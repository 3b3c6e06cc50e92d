# %% list-in-each-layer | 150MiB | ^growth.* in each of \d\d passes: net\[\*\]\.maps\[\*\] holds
class Block(nn.Module):
    def __init__(self):
        super().__init__(); self.qk = nn.Linear(64, 128); self.maps = []
    def forward(self, x):
        q, k = self.qk(x).chunk(2, -1)
        a = (q @ k.transpose(1, 2)).softmax(-1)
        self.maps.append(a)
        return a @ x
net = nn.Sequential(Block(), Block()).to(device)
opt = torch.optim.Adam(net.parameters())
for step in range(60):
    x = torch.randn(8, 256, 64, device=device)
    loss = net(x).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
# %% keys-in-each-layer | 150MiB | ^growth.* in each of 1\d\d passes: stack\.layers\[\*\]\.cache
class Memo(nn.Module):
    def __init__(self):
        super().__init__(); self.lin = nn.Linear(256, 256); self.cache = {}
    def forward(self, x, key):
        y = torch.relu(self.lin(x)); self.cache[key] = y; return y
class Stack(nn.Module):
    def __init__(self):
        super().__init__(); self.layers = nn.ModuleList([Memo() for i in range(4)])
    def forward(self, x, key):
        for l in self.layers: x = l(x, key)
        return x
stack = Stack().to(device).eval()
with torch.no_grad():
    for i in range(200):
        stack(torch.randn(256, 256, device=device), f"doc-{i}")
# %% chain-of-parents | 160MiB | ^growth.* in each of 1\d\d passes since pass \d+: node.parent\*.state holds 1
class Node:
    def __init__(self, parent, state):
        self.parent, self.state, self.children = parent, state, []
        if parent: parent.children.append(self)
root = Node(None, torch.zeros(256, 1024, device=device))
node = root
for depth in range(300):
    node = Node(node, node.state * 0.9 + torch.randn(256, 1024, device=device))
# %% tasks-by-functions-above | 250MiB | ^gradient-accumulation-wrong.* graphs of 16 batches in meta_loss
w = [torch.randn(512, 512, device=device, requires_grad=True) for _ in range(2)]
def predict(x, w): return torch.tanh(x @ w[0]) @ w[1]
def adapt(w, x, y, steps=3):
    for _ in range(steps):
        l = F.mse_loss(predict(x, w), y)
        g = torch.autograd.grad(l, w, create_graph=True)
        w = [p - 0.01 * gi for p, gi in zip(w, g)]
    return w
meta = torch.optim.Adam(w)
meta_loss = 0
for task in range(16):
    x, y = torch.randn(2, 256, 512, device=device)
    fast = adapt(w, x, y)
    meta_loss = meta_loss + F.mse_loss(predict(x, fast), y)
meta.zero_grad(); meta_loss.backward(); meta.step()
