# %% network | https://dreamquark-ai.github.io/tabnet/
import torch
from pytorch_tabnet.tab_network import TabNetNoEmbeddings

groups = torch.eye(54, device="cuda")  # no buffer: .cuda() does not move it
network = TabNetNoEmbeddings(54, 7, n_d=64, n_a=64, n_steps=5, group_attention_matrix=groups).cuda()
optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
for _ in range(3):
    output, m_loss = network(torch.randn(1024, 54, device="cuda"))
    target = torch.randint(0, 7, (1024,), device="cuda")
    loss = torch.nn.functional.cross_entropy(output, target) - 1e-3 * m_loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
