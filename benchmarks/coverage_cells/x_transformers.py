# %% decoder | https://github.com/lucidrains/x-transformers
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

model = TransformerWrapper(
    num_tokens=20000, max_seq_len=512, attn_layers=Decoder(dim=512, depth=6, heads=8)
).cuda()
model = AutoregressiveWrapper(model)
x = torch.randint(0, 20000, (2, 512), device="cuda")
model(x).backward()

# %% generate | https://github.com/lucidrains/x-transformers
import torch
from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

model = TransformerWrapper(
    num_tokens=20000, max_seq_len=256, attn_layers=Decoder(dim=256, depth=4, heads=8)
).cuda()
model = AutoregressiveWrapper(model)
text = model.generate(torch.randint(0, 20000, (1, 32), device="cuda"), 64, eos_token=1)
