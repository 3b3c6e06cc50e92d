# %% vq | https://github.com/lucidrains/vector-quantize-pytorch
import torch
from vector_quantize_pytorch import VectorQuantize

vq = VectorQuantize(dim=256, codebook_size=512, decay=0.8, commitment_weight=1.0).cuda()
x = torch.randn(4, 1024, 256, device="cuda", requires_grad=True)
quantized, indices, commit_loss = vq(x)
(quantized.sum() + commit_loss.sum()).backward()

# %% fsq | https://github.com/lucidrains/vector-quantize-pytorch#finite-scalar-quantization
import torch
from vector_quantize_pytorch import FSQ

quantizer = FSQ([8, 5, 5, 5]).cuda()
x = torch.randn(4, 1024, 4, device="cuda", requires_grad=True)
xhat, indices = quantizer(x)
xhat.sum().backward()
