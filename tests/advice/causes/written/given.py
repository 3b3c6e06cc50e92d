# %% taught-through-the-teacher | 300MiB | ^frozen-layers-record .*goes through teacher
def tower(w): return nn.Sequential(nn.Linear(1024, w), *[m for _ in range(8) for m in (nn.GELU(), nn.Linear(w, w))], nn.Linear(w, 32))
student, teacher = tower(64).to(device), tower(512).to(device)
opt = torch.optim.SGD(student.parameters(), lr=0.1)
T = 4.0
for step in range(4):
    x = torch.randn(6000, 1024, device=device)
    s = student(x)
    t = teacher(x)
    loss = F.kl_div((s / T).log_softmax(1), (t / T).softmax(1), reduction="batchmean") * T * T
    opt.zero_grad()
    loss.backward()
    opt.step()
# %% heads-of-edges | 160MiB | ^enlarged-result .*edges of a graph
class Attend(nn.Module):
    def __init__(self, d, h, o):
        super().__init__()
        self.h, self.lin, self.a = h, nn.Linear(d, h * o), nn.Parameter(torch.randn(h, o))
    def forward(self, x, edges):
        z = self.lin(x).view(len(x), self.h, -1)
        source, target = z.index_select(0, edges[0]), z.index_select(0, edges[1])
        weight = F.leaky_relu(((source + target) * self.a).sum(-1)).exp()
        return torch.zeros_like(z).index_add(0, edges[1], source * weight[..., None])
nodes = torch.randn(3000, 64, device=device); edges = torch.randint(0, 3000, (2, 100000), device=device)
Attend(64, 4, 32).to(device)(nodes, edges).mean().backward()
